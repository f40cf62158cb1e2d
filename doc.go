// Package cay is the domain of Cay: sandboxes, templates, snapshots, teams,
// the policies that bind them and the errors that every part speaks.
//
// It imports the standard library only. Every other package of the module may
// import it; it imports none of them.
package cay
