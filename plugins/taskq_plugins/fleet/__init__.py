"""Find task logs, their segments and their durable ends; needs no package besides taskq."""
