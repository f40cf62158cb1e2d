package image

// The coding agents of the templates claude-agent and codex, in the versions that
// examples/models is tried with.
const (
	claudeCode = "@anthropic-ai/claude-code@2.1.332"
	codex      = "@openai/codex@0.171.0"
)

// ClaudeAgent is Base with Claude Code.
func ClaudeAgent() Recipe { return withProgram("claude-agent", claudeCode) }

// Codex is Base with OpenAI's Codex.
func Codex() Recipe { return withProgram("codex", codex) }

// withProgram is Base with a program of npm.
func withProgram(name, pkg string) Recipe {
	base := Base()
	return Recipe{
		Name: name,
		From: &base,
		Steps: []Step{
			{Name: "install " + pkg, Script: "npm install --global --no-audit --no-fund --loglevel=error " + pkg},
			{Name: "tidy up", Script: tidy},
		},
	}
}
