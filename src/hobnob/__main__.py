"""The command `hobnob`."""

import gc


def main() -> None:
    gc.disable()  # imported modules stay, so collections while importing free nothing
    from hobnob import cli

    gc.enable()
    cli.main()


if __name__ == "__main__":
    main()
