"""The command `hobnob`."""

import gc


def main() -> None:
    gc.disable()  # what is imported stays: to look through it for what does not finds nothing
    from hobnob import cli

    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
