from hobnob.cli import main

main()
