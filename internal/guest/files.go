package guest

import (
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The agent's routes of plain files, and the interpreter's that run code. All
// other routes of the agent are in the generated code of api/proto.
const (
	FilesPath   = "/files"
	ComposePath = "/files/compose"
	TarPath     = "/files/tar"
	ExecutePath = "/execute"
	// RehearsePath of the interpreter, by POST without a body, does what a first
	// execution does and leaves no trace. Interpreters that are older answer 404.
	RehearsePath = "/rehearse"
)

// FileOperation names the operation that a signature must allow for a request
// to a route of files. It is empty where no signature replaces the access token.
func FileOperation(method, path string) string {
	suffix := ""
	switch path {
	case FilesPath:
	case TarPath:
		suffix = "-tar"
	default:
		return ""
	}
	switch method {
	case http.MethodGet, http.MethodHead:
		return "read" + suffix
	case http.MethodPost:
		return "write" + suffix
	case http.MethodPut:
		if path == TarPath {
			return "write" + suffix
		}
	}
	return ""
}

// Signature is the part of a file URL's query that replaces the access token.
type Signature struct {
	Value  string
	Path   string
	User   string
	Expiry string // Unix seconds as the query has them; empty for none
}

// SignatureOf reads the signature of a query. The value of a query without
// one is empty.
func SignatureOf(q url.Values) Signature {
	return Signature{
		Value: q.Get("signature"), Path: q.Get("path"), User: q.Get("username"),
		Expiry: q.Get("signature_expiration"),
	}
}

// Sign returns the value that a token gives a signature for an operation, as
// the SDKs compute it.
func (s Signature) Sign(op, token string) string {
	raw := s.Path + ":" + op + ":" + s.User + ":" + token
	if s.Expiry != "" {
		raw += ":" + s.Expiry
	}
	sum := sha256.Sum256([]byte(raw))
	return signed + base64.RawStdEncoding.EncodeToString(sum[:])
}

// IsBy reports in constant time whether a token made a signature for an
// operation.
func (s Signature) IsBy(op, token string) bool {
	return subtle.ConstantTimeCompare([]byte(s.Value), []byte(s.Sign(op, token))) == 1
}

// Expired reports whether a signature's time is over. An expiration that is no
// time counts as over.
func (s Signature) Expired(now time.Time) bool {
	if s.Expiry == "" {
		return false
	}
	at, err := strconv.ParseInt(s.Expiry, 10, 64)
	return err != nil || at < now.Unix()
}

// signed begins every signature.
const signed = "v1_"

// maxSigned bounds the path and the user of a signature that a server looks
// for: Linux has no longer paths.
const maxSigned = 4096

// Plausible reports whether any token could have made a signature. It costs no
// digest, so a server asks it before it tries tokens.
func (s Signature) Plausible() bool {
	sum, ok := strings.CutPrefix(s.Value, signed)
	if !ok || len(s.Path) > maxSigned || len(s.User) > maxSigned || len(s.Expiry) > 20 {
		return false
	}
	b, err := base64.RawStdEncoding.DecodeString(sum)
	return err == nil && len(b) == sha256.Size
}
