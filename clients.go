package cay

// Words that clients look for in errors.
const (
	textSandboxes = "maximum number of concurrent E2B sandboxes"
	textBuilds    = "maximum number of concurrent template builds"
	textNoTag     = "does not exist for template"
)

// NoTag is the error for a tag, or a build in place of one, that nothing starts from.
func NoTag(template, tag string) *Error {
	return Errorf(NotFound, "tag '%.80s' "+textNoTag+" '%.200s'", tag, template)
}

// ClientText is a text in an error that a client decides by.
type ClientText struct {
	Client   string
	Versions string // that were read
	Route    string // where it comes, or "any sandbox" for what answers in place of a sandbox
	Status   int
	Text     string // empty where the status alone decides
	Then     string // what the client does
}

// ClientTexts lists the texts that clients match on. They are a contract: each
// has its case in TestClientTexts of internal/server.
func ClientTexts() []ClientText {
	const (
		create = "POST /v2/sandboxes"
		start  = "POST /v2/templates/{templateID}/builds/{buildID}"
		status = "GET /templates/{templateID}/builds/{buildID}/status"
		box    = "any sandbox"
	)
	return []ClientText{
		{"E2B SDK for Python", "2.63", box, 502, "was not found", "raises `SandboxNotRunningException`"},
		{"E2B SDK for Python", "2.63", box, 502, "port is not open", "raises `SandboxUnreachableException`"},
		{"Harbor", "0.26", create, 429, "maximum number of concurrent", "waits for room; any other 429 is tried once more"},
		{"Harbor", "0.26", "POST /v3/templates", 429, "maximum number of concurrent", "waits for room"},
		{"Harbor", "0.26", start, 429, "maximum number of concurrent", "waits for room"},
		{"Harbor", "0.26", create, 404, "does not exist", "waits for the build of the tag"},
		{"Harbor", "0.26", start, 409, "", "the build is under way: waits for its tag"},
		{"Harbor", "0.26", status, 404, "not found", "the build is not recorded yet: reads its status again"},
		{"inspect_sandboxes", "0.6", "POST /files of a sandbox", 400, "is a directory", "raises `IsADirectoryError`"},
		{"Mastra", "0.8", create, 404, "not found", "builds its own template again"},
		{"Mastra", "0.8", box, 502, "sandbox was not found", "starts another sandbox"},
		{"ComputeSDK", "1.7", create, 401, "API key", "says that the key is wrong"},
		{"ComputeSDK", "1.7", create, 429, "limit", "says that a quota is used up"},
	}
}
