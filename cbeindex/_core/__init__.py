"""What every room needs: typing, threads, progress. Nothing about vectors."""
