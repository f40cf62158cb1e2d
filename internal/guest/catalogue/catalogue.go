// Package catalogue is the table of servers of the Model Context Protocol that
// the gateway inside a sandbox starts by name: which package of npm or PyPI is
// the server of a name in E2B's catalogue, and which key of its configuration
// becomes which argument or variable. The names and keys are those of
// e2b/sandbox/mcp.py in the Python SDK 2.63.0. Host and guest share it: a template
// installs some of them when it is made, the gateway the others when they are
// asked for.
package catalogue

import (
	"cmp"
	"slices"

	"github.com/cay-run/cay/internal/near"
)

// Dir is where servers are installed, each in a directory of its own.
const Dir = "/opt/mcp-gateway"

// Server is one row.
type Server struct {
	Name string
	// NPM or PyPI is the package, and Version the one that is installed.
	NPM, PyPI, Version string
	// With is a requirement of PyPI besides: some packages bound too little of
	// what they need.
	With string
	// Args follow the program. {key} stands for the value of a key, without which
	// the argument is left out, and {key...} for each of a list's values.
	Args []string
	// Env has a key's name by the variable that gets its value.
	Env map[string]string
	// Fixed are variables that do not come from the configuration.
	Fixed map[string]string
	// Needs are the keys without which the server does not start.
	Needs []string
}

// Path is where the server lies when it is installed. It has the version, so
// that an older one, of the template, is not taken for it.
func (s Server) Path() string { return Dir + "/" + s.Name + "@" + s.Version }

// Install is a shell script that installs the server, as root. A directory
// at Path is whole. Scripts of packages do not run: they fetch browsers and
// count installations, and no server of the table needs one.
func (s Server) Install() string {
	command := "npm install --no-audit --no-fund --ignore-scripts --loglevel=error --prefix '" + s.Path() + ".new' '" + s.NPM + "@" + s.Version + "' >&2"
	if s.PyPI != "" {
		command = "python3 -m pip install --quiet --no-cache-dir --disable-pip-version-check --root-user-action=ignore --target '" + s.Path() + ".new' '" + s.PyPI + "==" + s.Version + "'"
		if s.With != "" {
			command += " '" + s.With + "'"
		}
		command += " >&2"
	}
	return "set -e\nmkdir -p '" + Dir + "'\nrm -rf '" + s.Path() + ".new'\nmkdir '" + s.Path() + ".new'\n" + command + "\nmv -T '" + s.Path() + ".new' '" + s.Path() + "'\n"
}

// Find returns the row of a name.
func Find(name string) (Server, bool) {
	i, ok := slices.BinarySearchFunc(servers, name, func(s Server, name string) int { return cmp.Compare(s.Name, name) })
	if !ok {
		return Server{}, false
	}
	return servers[i], true
}

// Names lists all names, sorted.
func Names() []string {
	out := make([]string, len(servers))
	for i, s := range servers {
		out[i] = s.Name
	}
	return out
}

// Near lists a few names that are like one that is not there.
func Near(name string) []string { return near.Words(name, Names()) }
