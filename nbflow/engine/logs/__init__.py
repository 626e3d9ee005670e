"""What bodies print, log, warn and display, kept with their step."""
