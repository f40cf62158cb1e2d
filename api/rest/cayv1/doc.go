// Package cayv1 is the generated half of Cay's own REST routes, /cay/v1, from
// api/openapi/cay.yaml. internal/edge/rest answers them.
package cayv1
