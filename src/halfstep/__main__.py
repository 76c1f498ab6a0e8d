from halfstep.cli import main

if __name__ == "__main__":  # and not in a process that draws figures, which imports this too
    main()
