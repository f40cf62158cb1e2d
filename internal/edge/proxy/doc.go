// Package proxy brings requests from outside to the ports of sandboxes.
//
// A request belongs to a sandbox by its host label `<port>-<id>`, by the two
// routing headers of the SDKs, or by the signature of a file URL; all others
// go to the next handler. Bodies pass through unbuffered, websockets too.
//
// A killed sandbox does not answer, so its connections would hang for ever.
// The proxy therefore owns every connection it makes: Cut breaks all those of
// one sandbox so that clients see a broken connection, never a clean end.
package proxy
