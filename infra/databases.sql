-- Run once by the Postgres image, on an empty volume.
CREATE DATABASE prefect;
CREATE DATABASE mlflow;
