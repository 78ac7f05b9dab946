"""What a person, or a container, runs: a module or folder for each verb. Nothing else imports them but `cli`."""
