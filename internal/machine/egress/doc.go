// Package egress decides about what a guest sends and the packet filter cannot
// decide alone: names. It is a transparent proxy and a name server on the
// host, in front of the sandboxes.
//
// The filter (package vnet) diverts to it the connections that no address rule
// allows, those to the web when headers are to be set, and the questions for
// names of every sandbox that may not reach everything. All else goes straight
// through the kernel and never gets here.
//
//	guest ── filter ─┬─ allowed by address ───────────────── internet
//	                 ├─ else: Proxy ── name, then address ── internet
//	                 ├─ names: answers only what policy allows
//	                 ├─ hosts of packages, if there is a cache: Packages
//	                 ├─ models of the team's providers: Models
//	                 └─ public names of sandboxes: Server, in this process
//
// A name counts only if it is what the guest asks for in the clear (the server
// name of TLS, the Host of every HTTP request) and the address that it dialled
// is one that our own resolver has for the name. Everything that is parsed
// here comes from a hostile guest: it is bounded, and has a fuzz target.
package egress
