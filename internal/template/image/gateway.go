package image

import "github.com/cay-run/cay/internal/guest/catalogue"

// installedServers are servers of tools that need no account and that most
// configurations name. The gateway installs the others when they are asked for.
var installedServers = []string{"fetch", "filesystem", "git", "memory", "sequentialthinking", "time"}

// MCPGateway is Base with a few servers of the Model Context Protocol. The program
// in front of them is put beside the agent.
func MCPGateway() Recipe {
	base := Base()
	r := Recipe{Name: "mcp-gateway", From: &base}
	for _, name := range installedServers {
		if s, ok := catalogue.Find(name); ok {
			r.Steps = append(r.Steps, Step{Name: "install the server " + name, Script: s.Install()})
		}
	}
	r.Steps = append(r.Steps, Step{Name: "tidy up", Script: tidy})
	return r
}
