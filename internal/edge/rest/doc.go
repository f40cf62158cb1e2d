// Package rest is the REST face over control: E2B's names, fields and codes,
// described in api/openapi/e2b.yaml, and Cay's own routes under /cay/v1,
// described in api/openapi/cay.yaml. It translates and holds no state.
package rest
