package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"

	"github.com/cay-run/cay"
)

// interpPort is where the code interpreter of a sandbox listens.
const interpPort = 49999

// Code is something for a sandbox's code interpreter to run.
type Code struct {
	Text     string
	Language string // e.g. "python" or "js"; empty means Python
	Env      map[string]string
	// Context is where the code runs, instead of its language's default one.
	Context string
	// Stdout and Stderr get the output while it comes; nil discards it.
	Stdout, Stderr io.Writer
	// Result gets what the code shows, in order; nil discards it. Its error
	// ends the execution.
	Result func(CodeResult) error
	// Most bounds the bytes of one event, as they come, which are held in memory:
	// a larger one is left out, and Omitted told of its size. Zero is no bound.
	Most    int
	Omitted func(bytes int64)
}

// CodeResult is something that code showed: one thing in several forms. Forms
// that it does not have are empty; PNG, JPEG and PDF are the files' bytes.
type CodeResult struct {
	Main bool            `json:"is_main_result"` // the value of the last expression
	Text string          `json:"text"`
	HTML string          `json:"html"`
	SVG  string          `json:"svg"`
	PNG  []byte          `json:"png"`
	JPEG []byte          `json:"jpeg"`
	PDF  []byte          `json:"pdf"`
	JSON json.RawMessage `json:"json"`
}

// CodeError is what ended code before its time. It is not an error of the
// call.
type CodeError struct {
	Name      string `json:"name"`
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// NewContext makes a context: a kernel whose variables no other one sees.
func (s *Sandbox) NewContext(ctx context.Context, language string) (id string, err error) {
	resp, err := s.interp(ctx, "/contexts", map[string]string{"language": language})
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	var out struct{ ID string }
	if err := json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&out); err != nil {
		return "", s.gone(cay.Wrap(cay.Unavailable, err, "the connection broke"))
	}
	return out.ID, nil
}

// interp sends a request to the sandbox's code interpreter.
func (s *Sandbox) interp(ctx context.Context, route string, in any) (*http.Response, error) {
	body, err := json.Marshal(in)
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the request cannot be encoded")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.client.cfg.SandboxURL+route, bytes.NewReader(body))
	if err != nil {
		return nil, cay.Wrap(cay.Invalid, err, "the request cannot be made")
	}
	s.header(r.Header)
	r.Header.Set("E2b-Sandbox-Port", strconv.Itoa(interpPort))
	r.Header.Set("Content-Type", "application/json")
	resp, err := s.client.cfg.HTTP.Do(r)
	if err != nil {
		return nil, s.client.unreachable(ctx, err)
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		return nil, s.gone(failure(resp))
	}
	return resp, nil
}

// RunCode runs code in the language's default context, where what earlier code
// defined is still there. Its template needs a code interpreter. When ctx ends
// the code is interrupted.
func (s *Sandbox) RunCode(ctx context.Context, code Code) (*CodeError, error) {
	resp, err := s.interp(ctx, "/execute", map[string]any{
		"code": code.Text, "language": code.Language, "context_id": code.Context, "env_vars": code.Env,
	})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return s.follow(ctx, code, bufio.NewReader(resp.Body))
}

// follow hands the lines of an execution on until its end.
func (s *Sandbox) follow(ctx context.Context, code Code, lines *bufio.Reader) (failed *CodeError, err error) {
	var line []byte
	for {
		if line, err = code.next(lines, line[:0]); err != nil {
			if ctx.Err() != nil {
				return failed, ctx.Err()
			}
			if errors.Is(err, io.EOF) {
				err = io.ErrUnexpectedEOF
			}
			return failed, s.gone(cay.Wrap(cay.Unavailable, err, "the connection broke"))
		}
		var event struct{ Type, Text string }
		if err := json.Unmarshal(line, &event); err != nil {
			return failed, cay.Wrap(cay.Internal, err, "the interpreter's answer cannot be read")
		}
		switch event.Type {
		case "stdout":
			err = write(code.Stdout, []byte(event.Text))
		case "stderr":
			err = write(code.Stderr, []byte(event.Text))
		case "result":
			err = result(code, line)
		case "error":
			failed = &CodeError{}
			err = json.Unmarshal(line, failed)
		case "end_of_execution":
			return failed, nil
		}
		if err != nil {
			return failed, err
		}
	}
}

// next appends the next line that is within the bound to a buffer.
func (c Code) next(lines *bufio.Reader, to []byte) ([]byte, error) {
	var length int64
	for {
		part, err := lines.ReadSlice('\n')
		length += int64(len(part))
		large := c.Most > 0 && length > int64(c.Most)
		if !large {
			to = append(to, part...)
		}
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
		case err != nil:
			return nil, err
		case !large:
			return to, nil
		default:
			if c.Omitted != nil {
				c.Omitted(length)
			}
			to, length = to[:0], 0
		}
	}
}

func result(code Code, line []byte) error {
	if code.Result == nil {
		return nil
	}
	var r CodeResult
	if err := json.Unmarshal(line, &r); err != nil {
		return cay.Wrap(cay.Internal, err, "a result cannot be read")
	}
	return code.Result(r)
}
