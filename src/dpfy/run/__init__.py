"""Take private steps: reserve the event, draw the sample, bound, add noise, release."""
