package main

import (
	"github.com/cay-run/cay/client"
	"github.com/cay-run/cay/internal/config"
	"github.com/cay-run/cay/internal/operator"
	"github.com/cay-run/cay/internal/operator/doctor"
)

// ofNode chooses the machine that a command is about: this one, or that of a node of the
// cluster, by the API.
type ofNode struct {
	Node string `placeholder:"NODE" help:"Of a cluster: the machine of that node, by the API [this machine]."`
}

// running asks the server of this machine.
func running(cfg config.Config) doctor.Running {
	server := operator.Ask(cfg)
	return doctor.Running{Loading: server.Loading, Cached: server.Cached}
}

// at is the API, and the node that is asked there: of a member, unless another is named,
// its own.
func (n ofNode) at(a *app) (api *client.Client, node string, err error) {
	if api, err = a.admin(""); err != nil || n.Node != "" {
		return api, n.Node, err
	}
	cfg, err := a.config()
	if err != nil {
		return nil, "", err
	}
	own, err := operator.OwnNode(cfg)
	return api, string(own), err
}
