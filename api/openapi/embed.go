// Package openapi has the contracts of the REST API as they are.
package openapi

import _ "embed" // of the contracts

// E2B is the part of the API that is E2B's, Cay what it has no words for.
var (
	//go:embed e2b.yaml
	E2B []byte
	//go:embed cay.yaml
	Cay []byte
)
