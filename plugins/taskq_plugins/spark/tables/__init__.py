"""One pure function from data frame to data frame for each table."""
