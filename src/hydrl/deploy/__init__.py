"""A trained policy outside of training: loading, predicting, acting in a plain environment, exporting."""
