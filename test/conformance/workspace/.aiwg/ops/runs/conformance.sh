#!/bin/sh
# Does what the message says: every case of the suite brings its own script.
eval "$AIWG_A2A_MESSAGE"
