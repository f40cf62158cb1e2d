package cay

import (
	"net/url"
	"strings"
	"time"
)

// ModelHost is where sandboxes find the models of their team's providers.
const ModelHost = modelMember + "." + PrivateDomain

// modelMember is the part of ModelHost that no member of a private network is named.
const modelMember = "models"

// ModelWire is the protocol that a server of models speaks.
type ModelWire string

// The wires.
const (
	OpenAIWire    ModelWire = "openai"    // /v1/chat/completions, /v1/responses, /v1/embeddings
	AnthropicWire ModelWire = "anthropic" // /v1/messages
)

// ModelProvider is a server of models that a team's sandboxes reach through this
// one, which adds the team's key.
type ModelProvider struct {
	Team TeamID
	Name string // its own in the team
	Wire ModelWire
	// URL is what the provider's own SDK takes as its base URL.
	URL string
	// Secret names the team's secret with the key; empty for a server without keys.
	Secret string
	// Models are the names that sandboxes ask for, each with the provider's own name
	// for it, which is empty where it is the same. OtherModels stands for all other
	// names. Without any, the provider is asked for every model.
	Models map[string]string
	// Order says which provider is asked first: the lowest, then the oldest.
	Order   int
	Enabled bool
	// Timeout is how long the provider has until it begins to answer; 0 means the
	// usual time.
	Timeout   time.Duration
	CreatedAt time.Time
	UpdatedAt time.Time
	// Version is raised by one with each change.
	Version int64
}

// OtherModels stands for the models that are not named.
const OtherModels = "*"

// The bounds of providers.
const (
	MaxModelProviders = 50 // of a team
	MaxModelName      = 256
	maxModels         = 200
	maxModelOrder     = 1000
	maxModelTimeout   = 15 * time.Minute
)

// Check says what is wrong with a provider that a client asks for, but for its
// secret and the network of its address.
func (p ModelProvider) Check() error {
	switch {
	case !triggerName.MatchString(p.Name):
		return Errorf(Invalid, "name: must have 1 to 63 lower-case letters, digits, '.', '_' and '-', and begin with a letter or a digit")
	case p.Wire != OpenAIWire && p.Wire != AnthropicWire:
		return Errorf(Invalid, "wire: must be openai or anthropic").WithHint("most servers of models speak openai")
	case p.Order < 0 || p.Order > maxModelOrder:
		return Errorf(Invalid, "order: must be 0 to %d", maxModelOrder)
	case p.Timeout != 0 && (p.Timeout < time.Second || p.Timeout > maxModelTimeout):
		return Errorf(Invalid, "timeout: must be 1 to %d seconds, or 0 for the usual time", int(maxModelTimeout/time.Second))
	case len(p.Models) > maxModels:
		return Errorf(Invalid, "models: must be %d at most", maxModels)
	}
	for name, theirs := range p.Models {
		if !isModelName(name) || theirs != "" && !isModelName(theirs) {
			return Errorf(Invalid, "models: %.80q as %.80q: a name must have 1 to %d printable characters", name, theirs, MaxModelName)
		}
	}
	return checkModelURL(p.URL)
}

func isModelName(name string) bool {
	return name != "" && Fit(name, MaxModelName) == name
}

func checkModelURL(text string) error {
	u, err := url.Parse(text)
	switch {
	case len(text) > maxWebhookURL:
		return Errorf(Invalid, "url: has more than %d bytes", maxWebhookURL)
	case err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Hostname() == "" || u.Opaque != "":
		return Errorf(Invalid, "url: must be a base URL like https://api.openai.com/v1 or https://api.anthropic.com")
	case u.User != nil:
		return Errorf(Invalid, "url: must have no user and no password").WithHint("keep the key in a secret, and name it")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return Errorf(Invalid, "url: must have no query and no fragment")
	case strings.HasSuffix(u.Path, "/chat/completions") || strings.HasSuffix(u.Path, "/messages"):
		return Errorf(Invalid, "url: must be the base URL, without the route").WithHint("as the SDK of the provider takes it, like https://api.openai.com/v1")
	}
	return nil
}

// Serves reports whether a provider is asked for a model, and under which name.
func (p ModelProvider) Serves(model string) (theirs string, ok bool) {
	if len(p.Models) == 0 {
		return model, true
	}
	theirs, ok = p.Models[model]
	if !ok {
		theirs, ok = p.Models[OtherModels]
	}
	if theirs == "" {
		theirs = model
	}
	return theirs, ok
}
