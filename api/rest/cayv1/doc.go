// Package cayv1 is the generated half of Cay's own REST routes, /cay/v1, from
// api/openapi/cay.yaml. What answers them is internal/edge/rest.
package cayv1
