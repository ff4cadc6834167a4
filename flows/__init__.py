"""When the stages run, and in what order. The only floor that knows Prefect."""
