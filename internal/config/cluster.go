package config

import (
	"net"

	"github.com/cay-run/cay"
)

// Cluster says how the other members of a cluster reach this machine.
type Cluster struct {
	// ClusterAddress is the address and port where members listen for each other;
	// empty for a machine alone.
	ClusterAddress string `yaml:"clusterAddress"`
}

var clusterVariables = []Variable{
	{"CAY_CLUSTER_ADDRESS", "clusterAddress", "where the other members of a cluster reach this machine, e.g. 10.0.0.1:7071; it listens there [none: a machine alone]",
		func(c *Config, v string) error { c.ClusterAddress = v; return nil }},
}

func (c Config) clusterProblems() []error {
	at := c.ClusterAddress
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
