; The launch cache of tkc/runtime/launch_cache.py, which says what a key is and fills the cache.
; A name in braces is a number: the place of a field in the data of a cache, or a limit.
; Py… are CPython's own functions; objects are only passed on, but for the type, which every object has behind its count of references.

declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyBytes_AsString(ptr)
declare ptr @PyBytes_FromStringAndSize(ptr, i64)
declare ptr @PyDict_GetItem(ptr, ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare double @PyFloat_AsDouble(ptr)
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyObject_CallNoArgs(ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare void @PyErr_Clear()
declare i32 @memcmp(ptr, ptr, i64)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define private i64 @field(ptr %cache, i64 %k) alwaysinline {
  %at = getelementptr i64, ptr %cache, i64 %k
  %value = load i64, ptr %at
  ret i64 %value
}

define private ptr @pointer(ptr %cache, i64 %k) alwaysinline {
  %value = call i64 @field(ptr %cache, i64 %k)
  %pointer = inttoptr i64 %value to ptr
  ret ptr %pointer
}

; Whether the names of a call are the cache's, and what the kernel reads besides its arguments is what it was.
define private i1 @as_before(ptr %cache, ptr %call) {
  %named = call i64 @field(ptr %cache, i64 {named})
  %names = call ptr @pointer(ptr %cache, i64 {names})
  %watched = call i64 @field(ptr %cache, i64 {watched})
  %watches = call ptr @pointer(ptr %cache, i64 {watches})
  %none = call i64 @field(ptr %cache, i64 {none})
  %some = icmp ne i64 %named, 0
  %given = icmp ne ptr %call, null
  %differ = xor i1 %some, %given
  br i1 %differ, label %no, label %count
count:
  br i1 %some, label %size, label %globals
size:
  %n = call i64 @PyTuple_Size(ptr %call)
  %many = icmp eq i64 %n, %named
  br i1 %many, label %name, label %no
name:
  %j = phi i64 [ 0, %size ], [ %j1, %next ]
  %left = icmp ult i64 %j, %named
  br i1 %left, label %compare, label %globals
compare:
  %theirs = call ptr @PyTuple_GetItem(ptr %call, i64 %j)
  %ours = call ptr @pointer(ptr %names, i64 %j)
  %equal = icmp eq ptr %theirs, %ours
  br i1 %equal, label %next, label %no
next:
  %j1 = add i64 %j, 1
  br label %name
globals:
  br label %global
global:
  %k = phi i64 [ 0, %globals ], [ %k1, %another ]
  %more = icmp ult i64 %k, %watched
  br i1 %more, label %watch, label %yes
watch:
  %at = mul i64 %k, 3
  %at1 = add i64 %at, 1
  %at2 = add i64 %at, 2
  %space = call ptr @pointer(ptr %watches, i64 %at)
  %variable = call ptr @pointer(ptr %watches, i64 %at1)
  %value = call i64 @field(ptr %watches, i64 %at2)
  %is_part = icmp eq ptr %variable, null
  br i1 %is_part, label %part, label %entry
part:
  %held = load i64, ptr %space
  br label %same
entry:
  %found = call ptr @PyDict_GetItem(ptr %space, ptr %variable)
  %missing = icmp eq ptr %found, null
  %number = ptrtoint ptr %found to i64
  %bound = select i1 %missing, i64 %none, i64 %number
  br label %same
same:
  %now = phi i64 [ %held, %part ], [ %bound, %entry ]
  %kept = icmp eq i64 %now, %value
  br i1 %kept, label %another, label %no
another:
  %k1 = add i64 %k, 1
  br label %global
yes:
  ret i1 1
no:
  ret i1 0
}

; Writes a word for each tensor: with which of those behind it it shares bytes. ends: of each, its first byte and the one behind its last.
define private void @meetings(ptr %words, ptr %ends, i64 %n) {
entry:
  br label %first
first:
  %i = phi i64 [ 0, %entry ], [ %i1, %done ]
  %left = icmp ult i64 %i, %n
  br i1 %left, label %one, label %out
one:
  %i1 = add i64 %i, 1
  %at = mul i64 %i, 2
  %at1 = add i64 %at, 1
  %low = call i64 @field(ptr %ends, i64 %at)
  %high = call i64 @field(ptr %ends, i64 %at1)
  %some = icmp ult i64 %low, %high
  br label %second
second:
  %j = phi i64 [ %i1, %one ], [ %j1, %next ]
  %bits = phi i64 [ 0, %one ], [ %bits1, %next ]
  %more = icmp ult i64 %j, %n
  br i1 %more, label %next, label %done
next:
  %to = mul i64 %j, 2
  %to1 = add i64 %to, 1
  %other_low = call i64 @field(ptr %ends, i64 %to)
  %other_high = call i64 @field(ptr %ends, i64 %to1)
  %other_some = icmp ult i64 %other_low, %other_high
  %before = icmp ult i64 %low, %other_high
  %behind = icmp ult i64 %other_low, %high
  %both = and i1 %before, %behind
  %real = and i1 %some, %other_some
  %meet = and i1 %both, %real
  %bit = zext i1 %meet to i64
  %shifted = shl i64 %bit, %j
  %bits1 = or i64 %bits, %shifted
  %j1 = add i64 %j, 1
  br label %second
done:
  %word_at = getelementptr i64, ptr %words, i64 %i
  store i64 %bits, ptr %word_at
  br label %first
out:
  ret void
}

; Writes the key of a call, and the values that do not matter to that: addresses and numbers. The number of words; 0 where the call is not of the cache's kind.
define private i64 @gather(ptr %cache, ptr %args, i64 %given, ptr %call, ptr %words, ptr %values) {
  %tensor = alloca [6 x i64], align 16
  %asked = alloca ptr
  %ends = alloca [{MAX_SPAN_ENDS} x i64], align 16
  %over = alloca i32
  %stream = alloca ptr
  %positional = call i64 @field(ptr %cache, i64 {positional})
  %named = call i64 @field(ptr %cache, i64 {named})
  %kinds = call ptr @pointer(ptr %cache, i64 {kinds})
  %describe = call ptr @pointer(ptr %cache, i64 {describe})
  %home = call i64 @field(ptr %cache, i64 {device})
  %ask = call ptr @pointer(ptr %cache, i64 {stream})
  %is_negated = call ptr @pointer(ptr %cache, i64 {is_negated})
  %false = call ptr @pointer(ptr %cache, i64 {false})
  %may_ask = icmp ne ptr %is_negated, null
  %total = add i64 %positional, %named
  %place = getelementptr i64, ptr %tensor, i64 1
  %kind_at = getelementptr i64, ptr %tensor, i64 2
  %shape_at = getelementptr i64, ptr %tensor, i64 3
  %strides_at = getelementptr i64, ptr %tensor, i64 4
  %offset_at = getelementptr i64, ptr %tensor, i64 5
  %as_many = icmp eq i64 %given, %positional
  br i1 %as_many, label %check, label %no
check:
  %same = call i1 @as_before(ptr %cache, ptr %call)
  br i1 %same, label %argument, label %no
argument:
  %i = phi i64 [ 0, %check ], [ %i1, %written ]
  %n = phi i64 [ 0, %check ], [ %n1, %written ]
  %t = phi i64 [ 0, %check ], [ %t1, %written ]
  %v = phi i64 [ 0, %check ], [ %v1, %written ]
  %device = phi i64 [ %home, %check ], [ %device1, %written ]
  %left = icmp ult i64 %i, %total
  %room = icmp ult i64 %n, {LAST_ARGUMENT_WORD}
  %out = getelementptr i64, ptr %words, i64 %n
  br i1 %left, label %fits, label %last
fits:
  br i1 %room, label %look, label %no
look:
  %arg_at = getelementptr ptr, ptr %args, i64 %i
  %arg = load ptr, ptr %arg_at
  %type_at = getelementptr i8, ptr %arg, i64 {type}
  %type = load i64, ptr %type_at
  %k = mul i64 %i, 2
  %k1 = add i64 %k, 1
  %wanted = call i64 @field(ptr %kinds, i64 %k)
  %kind = call i64 @field(ptr %kinds, i64 %k1)
  %typed = icmp eq i64 %type, %wanted
  br i1 %typed, label %dispatch, label %no
dispatch:
  switch i64 %kind, label %object [ i64 {TENSOR}, label %array  i64 {INT}, label %integer  i64 {FLOAT}, label %float  i64 {NUMBER}, label %number  i64 {REAL}, label %real  i64 {PLACE}, label %array ]
object:
  %identity = ptrtoint ptr %arg to i64
  br label %one
integer:
  store i32 0, ptr %over
  %small = call i64 @PyLong_AsLongLongAndOverflow(ptr %arg, ptr %over)
  %wrapped = load i32, ptr %over
  %exact = icmp eq i32 %wrapped, 0
  br i1 %exact, label %one, label %no
float:
  %fraction = call double @PyFloat_AsDouble(ptr %arg)
  %bits = bitcast double %fraction to i64
  br label %one
number:                                           ; what a specialization may know of an integer: it is 1, a multiple of 16, negative, it needs 64 bits; and 0, which a launch may refuse
  store i32 0, ptr %over
  %integral = call i64 @PyLong_AsLongLongAndOverflow(ptr %arg, ptr %over)
  %large = load i32, ptr %over
  %whole_ = icmp eq i32 %large, 0
  %narrow = trunc i64 %integral to i32
  %again = sext i32 %narrow to i64
  %fits_ = icmp eq i64 %again, %integral
  %is_one = icmp eq i64 %integral, 1
  %lower = and i64 %integral, 15
  %aligned = icmp eq i64 %lower, 0
  %fact1 = select i1 %aligned, i64 1, i64 0
  %fact2 = select i1 %fits_, i64 0, i64 2
  %is_negative = icmp slt i64 %integral, 0
  %fact3 = select i1 %is_negative, i64 4, i64 0
  %fact5 = add i64 %fact2, %fact1
  %fact6 = add i64 %fact5, %fact3
  %fact4 = select i1 %is_one, i64 8, i64 %fact6
  %is_zero = icmp eq i64 %integral, 0
  %fact = select i1 %is_zero, i64 16, i64 %fact4
  br i1 %whole_, label %value, label %no
real:
  %any_real = call double @PyFloat_AsDouble(ptr %arg)
  %real_bits = bitcast double %any_real to i64
  br label %value
value:
  %given_value = phi i64 [ %integral, %number ], [ %real_bits, %real ]
  %known_fact = phi i64 [ %fact, %number ], [ 0, %real ]
  %value_at = getelementptr i64, ptr %values, i64 %v
  store i64 %given_value, ptr %value_at
  %v_value = add i64 %v, 1
  br label %one
one:
  %word = phi i64 [ %identity, %object ], [ %small, %integer ], [ %bits, %float ], [ %known_fact, %value ]
  %v_one = phi i64 [ %v, %object ], [ %v, %integer ], [ %v, %float ], [ %v_value, %value ]
  store i64 %word, ptr %out
  %n_one = add i64 %n, 1
  br label %written
array:
  %failed = call i32 %describe(ptr %arg, ptr %tensor)
  %described = icmp eq i32 %failed, 0
  br i1 %described, label %sizes, label %raised
raised:
  call void @PyErr_Clear()
  br label %no
sizes:
  %address = load i64, ptr %tensor
  %offset = load i64, ptr %offset_at
  %first = add i64 %address, %offset
  %device_of = load i64, ptr %place
  %element = load i64, ptr %kind_at
  %rank_ = trunc i64 %element to i32
  %rank = zext i32 %rank_ to i64
  %shape = load ptr, ptr %shape_at
  %strides = load ptr, ptr %strides_at
  %ranked = icmp ult i64 %rank, 65
  %strided = icmp ne ptr %strides, null
  %scalar = icmp eq i64 %rank, 0
  %known = or i1 %strided, %scalar
  %somewhere = icmp ne i64 %first, 0
  %laid = and i1 %ranked, %known
  %sound = and i1 %laid, %somewhere
  br i1 %sound, label %write, label %no
write:
  %address_at = getelementptr i64, ptr %values, i64 %v
  store i64 %first, ptr %address_at
  %v_array = add i64 %v, 1
  %t_next = add i64 %t, 1
  %alignment = and i64 %first, 15
  store i64 %alignment, ptr %out
  %out1 = getelementptr i64, ptr %out, i64 1
  %known_rest = icmp eq i64 %kind, {PLACE}
  br i1 %known_rest, label %placed_, label %rest
placed_:                                          ; nothing else of it counts
  %n_placed = add i64 %n, 1
  br label %written
rest:
  store i64 %device_of, ptr %out1
  %out2 = getelementptr i64, ptr %out, i64 2
  store i64 %element, ptr %out2
  br label %axis
axis:
  %a = phi i64 [ 0, %rest ], [ %a1, %extent ]
  %low = phi i64 [ 0, %rest ], [ %low1, %extent ]
  %high = phi i64 [ 0, %rest ], [ %high1, %extent ]
  %full = phi i1 [ 1, %rest ], [ %full1, %extent ]
  %dense = phi i1 [ 0, %rest ], [ %dense1, %extent ]
  %further = icmp ult i64 %a, %rank
  br i1 %further, label %extent, label %signs
extent:
  %extent_of = call i64 @field(ptr %shape, i64 %a)
  %stride_of = call i64 @field(ptr %strides, i64 %a)
  %pair = mul i64 %a, 2
  %here = add i64 %pair, 3
  %there = add i64 %pair, 4
  %extent_at = getelementptr i64, ptr %out, i64 %here
  %stride_at = getelementptr i64, ptr %out, i64 %there
  store i64 %extent_of, ptr %extent_at
  store i64 %stride_of, ptr %stride_at
  %steps = sub i64 %extent_of, 1
  %reach = mul i64 %steps, %stride_of
  %backwards = icmp slt i64 %reach, 0
  %down = select i1 %backwards, i64 %reach, i64 0
  %up = select i1 %backwards, i64 0, i64 %reach
  %low1 = add i64 %low, %down
  %high1 = add i64 %high, %up
  %any = icmp ne i64 %extent_of, 0
  %full1 = and i1 %full, %any
  %several = icmp sgt i64 %extent_of, 1
  %next_to = icmp eq i64 %stride_of, 1
  %neighbours = and i1 %several, %next_to
  %dense1 = or i1 %dense, %neighbours
  %a1 = add i64 %a, 1
  br label %axis
signs:                                            ; parts of complex numbers, which are no neighbours, may be of the other sign
  %code_ = lshr i64 %element, 32
  %code = and i64 %code_, 255
  %is_float = icmp eq i64 %code, {KDLFLOAT}
  %apart = xor i1 %dense, 1
  %part = and i1 %is_float, %apart
  %doubted = and i1 %part, %may_ask
  br i1 %doubted, label %doubt, label %whole
doubt:
  store ptr %arg, ptr %asked
  %answer = call ptr @PyObject_Vectorcall(ptr %is_negated, ptr %asked, i64 1, ptr null)
  %silent = icmp eq ptr %answer, null
  br i1 %silent, label %raised, label %answer_
answer_:
  call void @Py_DecRef(ptr %answer)
  %plain = icmp eq ptr %answer, %false
  br i1 %plain, label %whole, label %no
whole:
  %lanes = lshr i64 %element, 48
  %bits_ = lshr i64 %element, 40
  %bits_of = and i64 %bits_, 255
  %bits_all = mul i64 %bits_of, %lanes
  %bits_up = add i64 %bits_all, 7
  %item = lshr i64 %bits_up, 3
  %below = mul i64 %low, %item
  %begin = add i64 %first, %below
  %high_all = add i64 %high, 1
  %above = mul i64 %high_all, %item
  %end_ = add i64 %first, %above
  %end = select i1 %full, i64 %end_, i64 %begin
  %t_pair = mul i64 %t, 2
  %begin_at = getelementptr i64, ptr %ends, i64 %t_pair
  store i64 %begin, ptr %begin_at
  %end_at = getelementptr i64, ptr %begin_at, i64 1
  store i64 %end, ptr %end_at
  %pairs = mul i64 %rank, 2
  %used = add i64 %pairs, 3
  %n_array = add i64 %n, %used
  br label %written
written:
  %n1 = phi i64 [ %n_one, %one ], [ %n_array, %whole ], [ %n_placed, %placed_ ]
  %device1 = phi i64 [ %device, %one ], [ %device_of, %whole ], [ %device_of, %placed_ ]
  %t1 = phi i64 [ %t, %one ], [ %t_next, %whole ], [ %t, %placed_ ]
  %v1 = phi i64 [ %v_one, %one ], [ %v_array, %whole ], [ %v_array, %placed_ ]
  %i1 = add i64 %i, 1
  br label %argument
last:
  store ptr null, ptr %stream
  %asks = icmp ne ptr %ask, null
  br i1 %asks, label %streams, label %bytes
streams:
  %device_kind = trunc i64 %device to i32
  %upper = lshr i64 %device, 32
  %ordinal = trunc i64 %upper to i32
  %refused = call i32 %ask(i32 %device_kind, i32 %ordinal, ptr %stream)
  %answered = icmp eq i32 %refused, 0
  br i1 %answered, label %bytes, label %raised
bytes:
  call void @meetings(ptr %out, ptr %ends, i64 %t)
  %n_met = add i64 %n, %t
  %stream_at = getelementptr i64, ptr %words, i64 %n_met
  %current = load i64, ptr %stream
  store i64 %current, ptr %stream_at
  %n_all = add i64 %n_met, 1
  ret i64 %n_all
no:
  ret i64 0
}

; The entry of a dictionary under this key: a borrowed reference, or null.
define private ptr @under(ptr %dict, ptr %words, i64 %n) {
  %size = mul i64 %n, 8
  %key = call ptr @PyBytes_FromStringAndSize(ptr %words, i64 %size)
  %made = icmp ne ptr %key, null
  br i1 %made, label %look, label %failed
look:
  %found = call ptr @PyDict_GetItem(ptr %dict, ptr %key)
  call void @Py_DecRef(ptr %key)
  ret ptr %found
failed:
  call void @PyErr_Clear()
  ret ptr null
}

; The entry under this key; that of the last key without a look in the dictionary. last: number of words, entry, words.
define private ptr @entry_of(ptr %cache, ptr %words, i64 %n) {
  %last = call ptr @pointer(ptr %cache, i64 {last})
  %then = load i64, ptr %last
  %found_at = getelementptr i64, ptr %last, i64 1
  %words_at = getelementptr i64, ptr %last, i64 2
  %size = mul i64 %n, 8
  %as_many = icmp eq i64 %then, %n
  br i1 %as_many, label %compare, label %ask
compare:
  %differ = call i32 @memcmp(ptr %words_at, ptr %words, i64 %size)
  %same = icmp eq i32 %differ, 0
  br i1 %same, label %again, label %ask
again:
  %before = load ptr, ptr %found_at
  ret ptr %before
ask:
  %dict = call ptr @pointer(ptr %cache, i64 {entries})
  %found = call ptr @under(ptr %dict, ptr %words, i64 %n)
  %some = icmp ne ptr %found, null
  %short = icmp ule i64 %n, {MAX_LAST_KEY_WORDS}
  %kept = and i1 %some, %short
  br i1 %kept, label %keep, label %give
keep:
  store i64 %n, ptr %last
  store ptr %found, ptr %found_at
  call void @llvm.memcpy.p0.p0.i64(ptr %words_at, ptr %words, i64 %size, i1 0)
  br label %give
give:
  ret ptr %found
}

define private ptr @cache_of(ptr %self) {
  %data = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %cache = call ptr @PyBytes_AsString(ptr %data)
  ret ptr %cache
}

; The record of an entry (record, what it keeps alive …); null where the entry is ({addresses: entry},).
define private ptr @record_of(ptr %entry) {
  %n = call i64 @PyTuple_Size(ptr %entry)
  %only = icmp eq i64 %n, 1
  br i1 %only, label %no, label %yes
yes:
  %data = call ptr @PyTuple_GetItem(ptr %entry, i64 0)
  %record = call ptr @PyBytes_AsString(ptr %data)
  ret ptr %record
no:
  ret ptr null
}

; The key of a call, then the values, as bytes; None where it is not of the cache's kind.
define ptr @key(ptr %self, ptr %args, i64 %given, ptr %call) {
  %words = alloca [{MAX_KEY_WORDS} x i64], align 16
  %values = alloca [{MAX_ARGUMENTS} x i64], align 16
  %cache = call ptr @cache_of(ptr %self)
  %n = call i64 @gather(ptr %cache, ptr %args, i64 %given, ptr %call, ptr %words, ptr %values)
  %like = icmp ne i64 %n, 0
  br i1 %like, label %yes, label %no
yes:
  %count = call i64 @field(ptr %cache, i64 {values})
  %behind = getelementptr i64, ptr %words, i64 %n
  %bytes = mul i64 %count, 8
  call void @llvm.memcpy.p0.p0.i64(ptr %behind, ptr %values, i64 %bytes, i1 0)
  %all = add i64 %n, %count
  %size = mul i64 %all, 8
  %made = call ptr @PyBytes_FromStringAndSize(ptr %words, i64 %size)
  ret ptr %made
no:
  %none = call ptr @pointer(ptr %cache, i64 {none})
  call void @Py_IncRef(ptr %none)
  ret ptr %none
}

; The entry under the key of a call without its stream; None where there is none.
define ptr @find(ptr %self, ptr %args, i64 %given, ptr %call) {
  %words = alloca [{MAX_KEY_WORDS} x i64], align 16
  %values = alloca [{MAX_ARGUMENTS} x i64], align 16
  %cache = call ptr @cache_of(ptr %self)
  %n = call i64 @gather(ptr %cache, ptr %args, i64 %given, ptr %call, ptr %words, ptr %values)
  %like = icmp ne i64 %n, 0
  br i1 %like, label %look, label %no
look:
  %but_one = sub i64 %n, 1
  %entry = call ptr @entry_of(ptr %cache, ptr %words, i64 %but_one)
  %found = icmp ne ptr %entry, null
  br i1 %found, label %yes, label %no
yes:
  call void @Py_IncRef(ptr %entry)
  ret ptr %entry
no:
  %none = call ptr @pointer(ptr %cache, i64 {none})
  call void @Py_IncRef(ptr %none)
  ret ptr %none
}

define ptr @launch(ptr %self, ptr %args, i64 %given, ptr %call) {
entry:
  %words = alloca [{MAX_KEY_WORDS} x i64], align 16
  %values = alloca [{MAX_ARGUMENTS} x i64], align 16
  %block = alloca [{MAX_PARAMETER_BYTES} x i8], align 64
  %table = alloca [{MAX_PARAMETERS} x ptr], align 16
  %cache = call ptr @cache_of(ptr %self)
  %n = call i64 @gather(ptr %cache, ptr %args, i64 %given, ptr %call, ptr %words, ptr %values)
  %like = icmp ne i64 %n, 0
  br i1 %like, label %look, label %slow
look:
  %given_values = call i64 @field(ptr %cache, i64 {values})
  %form = call ptr @entry_of(ptr %cache, ptr %words, i64 %n)
  %known = icmp ne ptr %form, null
  br i1 %known, label %which, label %slow
which:
  %first = call ptr @PyTuple_GetItem(ptr %form, i64 0)
  %movable = call ptr @record_of(ptr %form)
  %fixed = icmp eq ptr %movable, null
  br i1 %fixed, label %exactly, label %copy
exactly:
  %same = call ptr @under(ptr %first, ptr %values, i64 %given_values)
  %made = icmp ne ptr %same, null
  br i1 %made, label %as_it_was, label %slow
as_it_was:
  %record = call ptr @record_of(ptr %same)
  %about = call i64 @field(ptr %record, i64 0)
  %in_python = icmp eq i64 %about, {IN_PYTHON}
  br i1 %in_python, label %python, label %in_driver
python:                                           ; a launch that is no call of the driver
  %launch_ = call ptr @PyTuple_GetItem(ptr %same, i64 1)
  call void @Py_IncRef(ptr %same)
  %answer = call ptr @PyObject_CallNoArgs(ptr %launch_)
  %raised = icmp eq ptr %answer, null
  br i1 %raised, label %no_answer, label %answered
no_answer:
  call void @Py_DecRef(ptr %same)
  ret ptr null
answered:
  call void @Py_DecRef(ptr %answer)
  %told = call ptr @pointer(ptr %record, i64 5)
  call void @Py_IncRef(ptr %told)
  call void @Py_DecRef(ptr %same)
  ret ptr %told
in_driver:
  %packed = call ptr @pointer(ptr %record, i64 4)
  br label %fresh
copy:
  %kept = call ptr @pointer(ptr %movable, i64 6)
  %bytes = call i64 @field(ptr %movable, i64 7)
  %count = call i64 @field(ptr %movable, i64 8)
  %places = call ptr @pointer(ptr %movable, i64 9)
  %moves = call ptr @pointer(ptr %movable, i64 10)
  %steps = call ptr @pointer(ptr %movable, i64 11)
  call void @llvm.memcpy.p0.p0.i64(ptr %block, ptr %kept, i64 %bytes, i1 0)
  br label %parameter
parameter:
  %p = phi i64 [ 0, %copy ], [ %p1, %placed ]
  %unplaced = icmp ult i64 %p, %count
  br i1 %unplaced, label %place, label %fresh
place:
  %offset = call i64 @field(ptr %places, i64 %p)
  %value_at = getelementptr i8, ptr %block, i64 %offset
  %table_at = getelementptr ptr, ptr %table, i64 %p
  store ptr %value_at, ptr %table_at
  %move = call i64 @field(ptr %moves, i64 %p)      ; which value, and how: as it is, its lower half, as a float
  %which_ = and i64 %move, 255
  %how = lshr i64 %move, 8
  %moved = icmp ult i64 %which_, %given_values
  br i1 %moved, label %take, label %placed
take:
  %from = call i64 @field(ptr %values, i64 %which_)
  %step = call i64 @field(ptr %steps, i64 %p)      ; bytes, of a view that begins later
  %new = add i64 %from, %step
  switch i64 %how, label %full [ i64 {BYTES_4}, label %half  i64 {AS_FLOAT32}, label %short ]
full:
  store i64 %new, ptr %value_at
  br label %placed
half:
  %lower_half = trunc i64 %new to i32
  store i32 %lower_half, ptr %value_at
  br label %placed
short:
  %double_ = bitcast i64 %new to double
  %float_ = fptrunc double %double_ to float
  store float %float_, ptr %value_at
  br label %placed
placed:
  %p1 = add i64 %p, 1
  br label %parameter
fresh:
  %entry_ = phi ptr [ %same, %in_driver ], [ %form, %parameter ]
  %chosen = phi ptr [ %record, %in_driver ], [ %movable, %parameter ]
  %parameters = phi ptr [ %packed, %in_driver ], [ %table, %parameter ]
  %now_at = call ptr @pointer(ptr %cache, i64 {generation})
  %now = load i64, ptr %now_at
  %then = call i64 @field(ptr %chosen, i64 0)
  %current = icmp eq i64 %now, %then
  br i1 %current, label %go, label %slow
go:
  %driver = call ptr @pointer(ptr %chosen, i64 1)
  %config = call ptr @pointer(ptr %chosen, i64 2)
  %function = call ptr @pointer(ptr %chosen, i64 3)
  %given_back = call ptr @pointer(ptr %chosen, i64 5)
  call void @Py_IncRef(ptr %given_back)
  call void @Py_IncRef(ptr %entry_)
  %thread = call ptr @PyEval_SaveThread()
  %error = call i32 %driver(ptr %config, ptr %function, ptr %parameters, ptr null)
  call void @PyEval_RestoreThread(ptr %thread)
  call void @Py_DecRef(ptr %entry_)
  %launched = icmp eq i32 %error, 0
  br i1 %launched, label %done, label %failed
done:
  ret ptr %given_back
failed:
  call void @Py_DecRef(ptr %given_back)
  br label %slow
slow:
  %on_miss = call ptr @pointer(ptr %cache, i64 {on_miss})
  %result = call ptr @PyObject_Vectorcall(ptr %on_miss, ptr %args, i64 %given, ptr %call)
  ret ptr %result
}
