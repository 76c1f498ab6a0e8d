from halfstep.cli import main

main()
