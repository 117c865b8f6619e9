"""`python -m dpbench` is `dpbench`."""

from dpbench.cli import main

if __name__ == "__main__":
    main()
