"""Signals: windows, frames, short-time Fourier transforms, spectra, peaks and convolution by FFT."""
