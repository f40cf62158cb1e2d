// Package sshd is an SSH server in front of sandboxes. A user's name is a
// sandbox's id; behind it are the agent's terminals and commands, its file
// server (which runs inside, so that the host parses nothing of it), and the
// sandbox's ports.
//
//	ssh ── Serve (its own port) ─────┐
//	                                 ├─ authenticated ── channels ── agent
//	ssh ── ServeTrusted (the one) ───┘
//
// A key opens the sandboxes of the teams that registered it, an API key as the
// password those of its team, and nothing else is told apart from a wrong one.
// Callers are bounded: in how long they may take to say who they are, in
// connections, and in channels. What a guest sends is only passed on.
package sshd
