"""Diagnosis of any classifier: is it sensitive to rotation or hue, for which images, and should it be?"""
