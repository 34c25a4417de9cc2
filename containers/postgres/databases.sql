-- MLflow keeps its tables apart: both it and Paribus migrate their own, and neither could use the other's database.
CREATE DATABASE mlflow;
