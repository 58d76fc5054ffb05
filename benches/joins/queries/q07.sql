-- 0.3 % of the items: those shipped in a week.
SELECT n1.n_name AS supp_nation, n2.n_name AS cust_nation, sum(l_extendedprice * (1 - l_discount)) AS revenue
FROM lineitem, supplier, orders, customer, nation n1, nation n2
WHERE l_shipdate >= '1995-01-01'
    AND l_shipdate < '1995-01-08'
    AND s_suppkey = l_suppkey
    AND o_orderkey = l_orderkey
    AND c_custkey = o_custkey
    AND n1.n_nationkey = s_nationkey
    AND n2.n_nationkey = c_nationkey
    AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY') OR (n1.n_name = 'GERMANY' AND n2.n_name = 'FRANCE'))
GROUP BY n1.n_name, n2.n_name
ORDER BY supp_nation, cust_nation
