package builtin

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"github.com/cay-run/cay"
	"github.com/cay-run/cay/internal/guest"
	"github.com/cay-run/cay/internal/template/image"
)

// The templates that Cay brings.
const (
	Base                  = "base"
	CodeInterpreterPython = "code-interpreter-python"
	CodeInterpreter       = "code-interpreter-v1"
	CodeInterpreterNewer  = "code-interpreter-newer"
	Desktop               = "desktop"
	MCPGateway            = "mcp-gateway"
	Docker                = "docker"
	Devcontainer          = "devcontainer"
	ClaudeAgent           = "claude-agent"
	Codex                 = "codex"
)

// Names lists those that every server has, in the order in which to build
// them: the later ones begin with the trees of the earlier ones.
func Names() []string { return []string{Base, CodeInterpreterPython, CodeInterpreter} }

// Descriptions says for people what each template that every server has is for.
func Descriptions() map[string]string {
	return map[string]string{
		Base:                  "Debian with Python, Node.js, Git and build tools",
		CodeInterpreterPython: "The code interpreter with Python alone: starts with less memory",
		CodeInterpreter:       "The code interpreter: Python, JavaScript, TypeScript, R, Java and Bash",
	}
}

// Extras lists those that are built when an operator asks for them.
func Extras() []string {
	return []string{CodeInterpreterNewer, Desktop, MCPGateway, Docker, Devcontainer, ClaudeAgent, Codex}
}

// definition is one template.
type definition struct {
	recipe image.Recipe
	args   []string // of PID 1
	ports  []int    // that must answer /health before the snapshot
	limits cay.Limits
	// gateway has the gateway of tools put into the root.
	gateway bool
	docker  bool // as cay.Setup.Docker
}

func lookup(name string) (definition, error) {
	switch name {
	case Base:
		return withAgent(image.Base(), 1024), nil
	case CodeInterpreterPython:
		return definition{
			recipe: image.CodeInterpreterPython(),
			args:   []string{guest.AgentPath, "-interp", "-languages", "python"},
			ports:  []int{guest.InterpPort},
			limits: cay.Limits{CPUs: 2, MemoryMB: 1024, DiskMB: 10240},
		}, nil
	case CodeInterpreter, CodeInterpreterNewer:
		recipe := image.CodeInterpreter()
		if name == CodeInterpreterNewer {
			recipe = image.CodeInterpreterNewer()
		}
		return definition{
			recipe: recipe,
			args:   []string{guest.AgentPath, "-interp"},
			ports:  []int{guest.InterpPort},
			limits: cay.Limits{CPUs: 2, MemoryMB: 2048, DiskMB: 10240},
		}, nil
	case Desktop:
		return withAgent(image.Desktop(), 2048), nil
	case ClaudeAgent:
		return withAgent(image.ClaudeAgent(), 2048), nil
	case Codex:
		return withAgent(image.Codex(), 2048), nil
	case MCPGateway:
		d := withAgent(image.MCPGateway(), 1024)
		d.gateway = true
		return d, nil
	case Docker, Devcontainer:
		recipe := image.Docker()
		if name == Devcontainer {
			recipe = image.Devcontainer()
		}
		d := withAgent(recipe, 2048)
		d.docker = true
		return d, nil
	}
	return definition{}, cay.Errorf(cay.NotFound, "no recipe for a template %q", name)
}

// withAgent is a template whose processes are the agent's alone when it starts.
func withAgent(recipe image.Recipe, memoryMB int) definition {
	return definition{
		recipe: recipe,
		args:   []string{guest.AgentPath},
		limits: cay.Limits{CPUs: 2, MemoryMB: memoryMB, DiskMB: 10240},
	}
}

// Recipes returns what the trees of templates are made by.
func Recipes(names ...string) ([]image.Recipe, error) {
	var out []image.Recipe
	for _, name := range names {
		def, err := lookup(name)
		if err != nil {
			return nil, err
		}
		out = append(out, def.recipe)
	}
	return out, nil
}

// boot is what a sandbox of it needs that starts from files.
func (d definition) boot() cay.Boot {
	return cay.Boot{Env: image.Env(), User: guest.User, Dir: guest.Home, Ports: d.ports, Docker: d.docker}
}

// setup is what processes start with, also in templates built from this one.
func (d definition) setup() cay.Setup {
	return cay.Setup{Args: d.args, Ports: d.ports, Env: image.Env(), User: guest.User, Dir: guest.Home, Docker: d.docker}
}

// key names everything that a snapshot of this definition depends on. Equal
// keys need no second build.
func (d definition) key(files []image.File, agentDigest, gatewayDigest, engineHash string) string {
	text, err := json.Marshal(struct {
		Recipe, Files, Agent, Engine string
		Format, Image                int
		Args                         []string
		Ports                        []int
		Limits                       cay.Limits
		Boot                         cay.Boot
		Gateway                      string `json:",omitempty"`
	}{
		d.recipe.Digest(), image.FilesDigest(files), agentDigest, engineHash,
		cay.SnapshotFormat, image.Format, d.args, d.ports, d.limits, d.boot(), gatewayDigest,
	})
	if err != nil {
		panic(err) // plain data: it cannot fail
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}
