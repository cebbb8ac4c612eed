"""Speech to text: Whisper, from sound files to text."""
