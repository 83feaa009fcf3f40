"""`python -m diffbatch` is the same as `diffbatch`."""

from diffbatch.cli.main import main

if __name__ == "__main__":
    main()
