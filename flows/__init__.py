"""Order and time of the stages. The only package that knows Prefect."""
