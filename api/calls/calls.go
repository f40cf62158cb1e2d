// Package calls is what callers of a sandbox's agent share.
package calls

import (
	"context"
	"encoding/base64"
	"net/http"

	"connectrpc.com/connect"
)

// ErrorCode is the metadata of an error of Cay's own that has its code, one of the
// domain's.
const ErrorCode = "X-Cay-Code"

// WithHeader has set fill in the header of every call.
func WithHeader(set func(http.Header)) connect.ClientOption {
	return connect.WithInterceptors(header(set))
}

// As makes a call one of a user of the sandbox; of its usual one, if the name
// is empty.
func As(h http.Header, user string) {
	if user != "" {
		h.Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user+":")))
	}
}

type header func(http.Header)

// WrapUnary implements connect.Interceptor.
func (set header) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, r connect.AnyRequest) (connect.AnyResponse, error) {
		set(r.Header())
		return next(ctx, r)
	}
}

// WrapStreamingClient implements connect.Interceptor.
func (set header) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return func(ctx context.Context, spec connect.Spec) connect.StreamingClientConn {
		conn := next(ctx, spec)
		set(conn.RequestHeader())
		return conn
	}
}

// WrapStreamingHandler implements connect.Interceptor.
func (header) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return next
}
