"""What every room needs: typing, threads, progress, tuning and checks of arguments. Nothing about vectors."""
