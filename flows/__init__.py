"""When and where the stages run. Importing this package settles the environment before Prefect reads it."""

from flows import environment

environment.prepare()
