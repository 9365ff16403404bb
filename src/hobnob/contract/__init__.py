"""The contract test: a black-box test of the session tools of any gateway that offers `POST /tools/invoke`.

`client` calls tools over HTTP, `checks` and `acting` are the checks, `runner` runs them and writes reports.
It uses nothing else of Hobnob.
"""
