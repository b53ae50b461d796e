"""`radixrt chat`: a conversation on the terminal with any server that has OpenAI's API.

`conversation` holds the messages and sends them, `commands` carries out /system, /schema and the like, `command` reads
lines and draws the answers.
"""
