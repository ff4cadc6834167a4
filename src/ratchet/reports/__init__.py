"""Reports, cards and other pages. The modules prepare the data, the templates in templates/ hold text and layout."""

NO_RESULT = {"ingest": "it writes the data card, which is no output", "train": "it adds images to the data card"}
