package guest

// AskPath, by POST at NameServer and HostPort, has a person asked whether a program
// inside may do something. The body is an Ask, the answer is an Answer, which comes
// within a minute; 4xx with a text refuses the question itself.
const AskPath = "/approvals"

// The bounds of an Ask, in bytes.
const (
	MaxAskTitle = 200
	MaxAskBody  = 16 << 10
)

// Ask is a question. Decisions may be remembered for its subject.
type Ask struct {
	Subject string `json:"subject"`
	Title   string `json:"title"`
	Body    string `json:"body"` // all that matters: equal questions have equal ones
}

// Answer says whether the program may, and why not.
type Answer struct {
	Yes bool   `json:"yes"`
	Why string `json:"why,omitempty"`
}
