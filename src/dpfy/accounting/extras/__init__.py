"""Compare accounting methods, exchange events with other libraries, and price tuning."""
