package config

import (
	"net"
	"slices"
	"strings"

	"github.com/cay-run/cay"
)

// Cluster says how the other members of a cluster reach this machine.
type Cluster struct {
	// ClusterAddress is the address and port where members listen for each other;
	// empty for a machine alone.
	ClusterAddress string `yaml:"clusterAddress"`
	// Roles is what a member does: RoleFront, RoleNode, or both; empty is both.
	Roles string `yaml:"roles"`
}

// The roles of a member.
const (
	RoleFront = "front" // it takes clients' requests
	RoleNode  = "node"  // it runs sandboxes
)

// has reports whether a member has a role.
func (c Cluster) has(role string) bool {
	return c.Roles == "" || slices.Contains(strings.Split(c.Roles, ","), role)
}

// Fronts reports whether this server takes clients' requests.
func (c Cluster) Fronts() bool { return c.has(RoleFront) }

// RunsSandboxes reports whether this server runs any.
func (c Cluster) RunsSandboxes() bool { return c.has(RoleNode) }

var clusterVariables = []Variable{
	{"CAY_CLUSTER_ADDRESS", "clusterAddress", "where the other members of a cluster reach this machine, e.g. 10.0.0.1:7071; it listens there [none: a machine alone]",
		func(c *Config, v string) error { c.ClusterAddress = v; return nil }},
	{"CAY_ROLES", "roles", "what a member of a cluster does: front takes clients' requests, node runs sandboxes, front,node does both [both]",
		func(c *Config, v string) error { c.Roles = v; return nil }},
}

func (c Config) clusterProblems() []error {
	for role := range strings.SplitSeq(c.Roles, ",") {
		if c.Roles != "" && role != RoleFront && role != RoleNode {
			return []error{cay.Errorf(cay.Invalid, "role %q is neither front nor node", role)}
		}
	}
	at := c.ClusterAddress
	if at == "" && !(c.Fronts() && c.RunsSandboxes()) {
		return []error{cay.Errorf(cay.Invalid, "roles: a machine alone does all, and CAY_CLUSTER_ADDRESS is not set")}
	}
	if at == "" {
		return nil
	}
	if host, _, err := net.SplitHostPort(at); err == nil && host == "" {
		return []error{cay.Errorf(cay.Invalid, "cluster address %q has no host: the other members could not reach it", at)}
	}
	if err := address("cluster", at); err != nil {
		return []error{err}
	}
	return nil
}
