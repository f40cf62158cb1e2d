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
// password those of its team, and every other answer is that to a wrong key. In a
// cluster the node that a client talks to lets it in, and joins it to the SSH server of
// the node that has the sandbox (relay).
// Callers are bounded: in the time until they have logged in, in connections, and
// in channels. A guest's bytes are only passed on.
package sshd
